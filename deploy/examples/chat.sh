#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A chat by curl, streamed: one JSON document a line behind "data: ", the last "[DONE]". A refusal is one document alone,
# whose message says why, and exit code 22.
#   deploy/examples/chat.sh [URL] [MODEL] [MESSAGE]
set -euo pipefail
url=${1:-http://127.0.0.1:8000} model=${2:-chat} message=${3:-Hello}
quoted() {  # as JSON has it
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"} text=${text//$'\t'/\\t} text=${text//$'\r'/\\r}
  printf '"%s"' "${text//$'\n'/\\n}"
}
messages="[{\"role\":\"user\",\"content\":$(quoted "$message")}]"
body="{\"model\":$(quoted "$model"),\"max_tokens\":60,\"temperature\":0,\"stream\":true,\"messages\":$messages}"
curl --fail-with-body -sSN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d "$body"
