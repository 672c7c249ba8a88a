# SPDX-License-Identifier: Apache-2.0
# The middle of quickstart.sh, which reads it: a conversation outgrows its engine's memory, lives on in its neighbours',
# and goes on while one of these takes its memory back.
# shellcheck shell=bash disable=SC2154

own=$(metric 9181 swiftcache_kv_blocks 'state="free"')
story=$(tr '\n' ' ' <deploy/lighthouse.txt)
donors=(smollm2-summary smollm2-complete)

say "a pasted text outgrows its memory: $own blocks of 16 tokens, $((own * 16)) tokens"
turn "Here is a story. $story What did the letter say? Answer in one sentence." \
  "Here is a story. [all $(wc -w <deploy/lighthouse.txt) words of deploy/lighthouse.txt] What did the letter say? Answer in one sentence."
turn "What was the name of the cat?"

both_lend() { for donor in "${donors[@]}"; do [ "$(leased "$donor")" -gt 0 ] || return 1; done; }
wait_for "both neighbours to lend memory" both_lend
say "where its memory is"
declare -A before now
row() { printf '  %-28s %8s %8s\n' "$@"; }
row "" blocks tokens
row "smollm2-chat's own" "$own" $((own * 16))
for donor in "${donors[@]}"; do
  before[$donor]=$(leased "$donor")
  row "leased from $donor" "${before[$donor]}" $((before[$donor] * 16))
done
prompts=swiftcache_prompt_tokens_by_source_total
explain "Prompt tokens so far: $(metric 9181 $prompts 'source="computed"') computed," \
  "$(metric 9181 $prompts 'source="local"') found in own memory," \
  "$(metric 9181 $prompts 'source="donor"') found in leased memory."

burst() {  # six requests at once, one for each paragraph
  local paragraph requests=() failed=0
  while IFS= read -rd '' paragraph; do
    "$ctl" generate --model=smollm2-summary --temperature=0 --max_tokens=48 --ignore_eos --cache_salt="$1" \
      --prompt="$paragraph In short:" >/dev/null &
    requests+=($!)
  done < <(awk 'BEGIN { RS = ""; ORS = "\0" } { gsub("\n", " "); print }' deploy/lighthouse.txt)
  for request in "${requests[@]}"; do wait "$request" || failed=1; done
  return $failed
}
reclaims() { metric 9182 swiftcache_reclaim_seconds_count; }
burst_ended() { ! kill -0 "$pid_burst" 2>/dev/null; }
taken_back() { [ "$(reclaims)" -gt 0 ] && [ "$(leased smollm2-summary)" -lt "${before[smollm2-summary]}" ]; }
felt() { taken_back || burst_ended; }

say "a burst: smollm2-summary gets six requests at once, needs its memory and takes it back"
for round in 1 2 3 4 5; do  # more than one only where a burst was over before memory became short
  burst "$round" >"$run/burst" 2>&1 4>&- &
  clients+=($!) pid_burst=$!
  wait_for "smollm2-summary to take memory back" felt
  for donor in "${donors[@]}"; do now[$donor]=$(leased "$donor"); done
  [ "$(reclaims)" -eq 0 ] || break
  wait "$pid_burst" || die "a request of the burst failed: $(tail -1 "$run/burst")"
done
[ "$(reclaims)" -gt 0 ] || die "smollm2-summary took no memory back in $round bursts"
row "blocks leased" before now
lost=0
for donor in "${donors[@]}"; do
  row "from $donor" "${before[$donor]}" "${now[$donor]}"
  [ "${now[$donor]}" -ge "${before[$donor]}" ] || lost=$((lost + before[$donor] - now[$donor]))
done
explain "Meanwhile the conversation goes on, beside the burst and on the same cores. $lost of its leased blocks are gone; what" \
  "it could not move out of them, and what follows that, it computes again."
turn "Tell me about the lighthouse."
read -r prompt found < <(tail -n 5 "$run/chat" | sed -n 's/^\[ttft.* prompt \([0-9]*\) tokens, \([0-9]*\) from.*/\1 \2/p' | tail -n 1)
explain "Of the $prompt tokens of this turn's prompt $found could be reused from its memory, own and leased; it computed $((prompt - found))."
wait "$pid_burst" || die "a request of the burst failed: $(tail -1 "$run/burst")"
close_chat
mean=$(awk -v sum="$(metric 9182 swiftcache_reclaim_seconds_sum)" -v n="$(reclaims)" 'BEGIN { printf "%.1f", 1e3 * sum / n }')
echo "smollm2-summary answered all six; leases it took back: $(reclaims), after $mean ms each on average."
gap=$'\n'
