#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Grafana's dashboards into the folder beside it: what is shown is said here, a line an expression.

  deploy/observability/grafana/dashboards.py            writes dashboards/*.json
  deploy/observability/grafana/dashboards.py --check    says which of them are not what it would write; exit code 1 then
"""
import itertools
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent / "dashboards"
WINDOW = "[$__rate_interval]"
MODEL, ENGINE = '{model_name=~"$model"}', '{engine=~"$engine"}'
# Requests that no model got have an empty model_name; what has no engine's name is another server's.
ALL = {"model": ".*", "engine": ".+"}
ROW_WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 8


def rate(metric, *by, of=""):
    return f"sum{' by (' + ', '.join(by) + ') ' if by else ''}(rate({metric}{of}{WINDOW}))"


def mean(histogram, *by, of=""):
    return f"{rate(histogram + '_sum', *by, of=of)} / {rate(histogram + '_count', *by, of=of)}"


def quantiles(histogram, *by, of="", at=(0.5, 0.99)):
    """[(legend, expression)]"""
    legend = " ".join("{{%s}}" % label for label in by)
    return [(f"P{100 * q:g} {legend}", f"histogram_quantile({q}, {rate(histogram + '_bucket', 'le', *by, of=of)})") for q in at]


OVERVIEW = {
    "What clients see": [
        ("First token", "s", "From a request's arrival at the gateway.",
         quantiles("swiftcache_gateway_time_to_first_token_seconds", "model_name", of=MODEL)),
        ("Time per output token", "s", "Of a whole answer, behind its first token.",
         quantiles("swiftcache_time_per_output_token_seconds", "model_name", of=MODEL)),
        ("Whole requests", "s", "From arrival at the gateway to the last token, of those that ended OK.",
         quantiles("swiftcache_gateway_e2e_request_latency_seconds", "model_name", of=MODEL))],
    "Traffic": [
        ("Requests", "reqps", "That ended, by gRPC's status code, from both doors.",
         [("{{model_name}} {{code}}", rate("swiftcache_gateway_requests_total", "model_name", "code", of=MODEL))]),
        ("Refusals", "reqps", "Requests that no engine took, and why.",
         [("gateway: {{reason}}", rate("swiftcache_gateway_refusals_total", "reason")),
          ("{{engine}}: {{reason}}", rate("swiftcache_requests_refused_total", "engine", "reason"))]),
        ("HTTP responses", "reqps", "Of the gateway, by status; those that reached no handler included.",
         [("{{code}}", rate("swiftcache_http_responses_total", "code", of='{job="swiftcache-gateway"}'))]),
        ("Tokens", "short", "Per second, in and out.",
         [("{{model_name}} in", rate("swiftcache_gateway_prompt_tokens_total", "model_name", of=MODEL)),
          ("{{model_name}} out", rate("swiftcache_gateway_generation_tokens_total", "model_name", of=MODEL))]),
        ("Requests under way", "short", "In the engines' steps, and in their queues.",
         [("{{model_name}} running", f"sum by (model_name) (swiftcache_running_requests{MODEL})"),
          ("{{model_name}} waiting", f"model:swiftcache_waiting_requests:sum{MODEL}")]),
        ("Requests by engine", "reqps", "Every attempt counted; retries are attempts on another engine.",
         [("{{engine}}", rate("swiftcache_gateway_engine_requests_total", "engine", of=MODEL)),
          ("{{engine}} failed: {{code}}", rate("swiftcache_gateway_engine_failures_total", "engine", "code", of=MODEL)),
          ("retries", rate("swiftcache_gateway_retries_total", of=MODEL))])],
    "The cluster": [
        ("Engines", "short", "That the broker knows, by state; those of a model that are ready.",
         [("{{state}}", "sum by (state) (swiftcache_broker_engines)"),
          ("{{model_name}} ready", "max by (model_name) (swiftcache_gateway_model_engines)")]),
        ("Servers", "short", "1: takes requests; 0: starts, drains, or does not answer Prometheus.",
         [("{{job}} {{instance}}", 'swiftcache_ready or on (job, instance) up{job=~"swiftcache-.*"} * 0'),
          ("drains: {{instance}}", "swiftcache_draining > 0 or swiftcache_draining * 0")]),
        ("Versions", "short", "Servers, by what they run.", [("{{program}} {{version}}", "count by (program, version) (swiftcache_build_info)")]),
        ("The gateway's own time", "s", "P99: turning text into tokens; from arrival to the first engine.",
         [("tokenize {{model_name}}", quantiles("swiftcache_gateway_tokenize_seconds", "model_name", of=MODEL, at=[0.99])[0][1]),
          ("queue {{model_name}}", quantiles("swiftcache_gateway_queue_time_seconds", "model_name", of=MODEL, at=[0.99])[0][1])]),
        ("The broker's silence", "s", "Age of the table by which a gateway routes, and of an engine's last heartbeat.",
         [("{{instance}}", "swiftcache_gateway_table_age_seconds"),
          ("{{engine}}", "swiftcache_heartbeat_age_seconds")]),
        ("Lost", "short", "Per second: clients cut as they did not read, log lines that nobody took, engines that died.",
         [("gRPC clients cut", rate("swiftcache_gateway_slow_readers_cut_total")),
          ("HTTP clients cut", rate("swiftcache_http_slow_readers_cut_total")),
          ("log lines {{instance}}", rate("swiftcache_log_lines_lost_total", "instance")),
          ("engines", rate("swiftcache_broker_deaths_total"))])],
    "Processes": [
        ("Processor", "short", "Cores that are busy.", [("{{job}} {{instance}}", rate("process_cpu_seconds_total", "job", "instance", of='{job=~"swiftcache-.*"}'))]),
        ("Memory", "bytes", "Resident. That of engines includes their arenas, as far as they were used.",
         [("{{job}} {{instance}}", 'process_resident_memory_bytes{job=~"swiftcache-.*"}')]),
        ("Open files", "percentunit", "Of those that the limit allows.",
         [("{{job}} {{instance}}", 'process_open_fds{job=~"swiftcache-.*"} / process_max_fds')])],
}

LEASES = {
    "Who lends to whom": [
        ("On lease", "bytes", "Lent (out) and borrowed (in), by engine.", [("{{engine}} {{direction}}", "swiftcache_leased_bytes")]),
        ("New leases", "ops", "By donor and borrower.",
         [("{{donor}} to {{borrower}}", rate("swiftcache_lease_granted_total", "donor", "borrower", of='{donor!=""}'))]),
        ("Leased blocks in use", "percentunit", "Of the blocks that an engine leases, those that hold KV.",
         [("{{engine}}", 'sum by (engine) (swiftcache_kv_leased_in_used_blocks) / (sum by (engine) (swiftcache_kv_blocks{state="leased_in"}) > 0)')]),
        ("How leases end", "ops", "Revoked: asked back. Fenced: taken back without the borrower. Lost: what they held is computed again.",
         [("revoked by {{engine}}", rate("swiftcache_lease_revoked_total", "engine", of='{job="swiftcache-engine"}')),
          ("fenced by {{engine}}", rate("swiftcache_lease_fenced_total", "engine", of='{job="swiftcache-engine"}')),
          ("lost by {{engine}}", rate("swiftcache_lease_lost_total", "engine"))]),
        ("Elastic decisions", "ops", "Engines that needed lent memory back; requests of borrowers that were offered memory.",
         [("{{engine}} needs memory", rate("swiftcache_scale_up_total", "engine", of='{job="swiftcache-engine"}')),
          ("offers", rate("swiftcache_scale_down_total", of='{job="swiftcache-broker"}'))]),
        ("Lost to padding", "percentunit", "Of a lease's bytes, where blocks of donor and borrower differ in size.",
         [("{{donor}} to {{borrower}}", "swiftcache_elastic_unit_wasted_bytes / (swiftcache_elastic_unit_bytes > 0)")])],
    "What it brings": [
        ("Prompt tokens by source", "short", "Per second. computed: nowhere to be found; local: own memory; donor: leases.",
         [("{{source}}", rate("swiftcache_prompt_tokens_by_source_total", "source", of=MODEL))]),
        ("Not computed", "percentunit", "Share of a model's prompt tokens that was found, over five minutes.",
         [("{{model_name}} {{source}}", 'model:swiftcache_prompt_tokens_by_source:share_5m{source!="computed", model_name=~"$model"}')]),
        ("KV that moves", "Bps", "To and from donors; read in place: no transfer, but memory traffic.",
         [("{{engine}} {{direction}}", rate("swiftcache_kv_transfer_bytes_total", "engine", "direction")),
          ("{{engine}} read in place", rate("swiftcache_kv_read_in_place_bytes_total", "engine"))])],
    "Whether it pays": [
        ("Tokens saved, and computed again", "short", "Per second, against own memory alone. Again for loans: as it was lent; for losses: as leases ended.",
         [("{{model_name}} {{effect}}", rate("swiftcache_sharing_tokens_total", "model_name", "effect", of=MODEL))]),
        ("Lent to whom", "bytes", "Mean over the window, by the models of donor and borrower.",
         [("{{model_name}} to {{borrower_model}}", rate("swiftcache_lease_byte_seconds_total", "model_name", "borrower_model"))]),
        ("Who took it back, and why", "ops", "need: the donor; broker: operator, limit or fairness; given_back: the borrower, unasked.",
         [("{{model_name}} from {{borrower_model}}: {{reason}}", rate("swiftcache_lease_ends_total", "model_name", "borrower_model", "reason"))])],
    "What it costs": [
        ("Interference by engine", "percentunit", "Speed beside lease traffic over speed without, over five minutes; 100 %: it costs nothing.",
         [("{{engine}} {{phase}}", "engine:swiftcache_interference:ratio_5m")]),
        ("Interference of the cluster", "percentunit", "Of all engines together, weighted by their traffic.",
         [("{{phase}}", "cluster:swiftcache_interference:ratio_5m")]),
        ("Under lease traffic", "short", "Seconds of steps per second: what interference rests upon.",
         [("{{engine}} {{phase}}", rate("swiftcache_lease_traffic_step_seconds_total", "engine", "phase"))]),
        ("Reclaim of a lease", "s", "From its revocation to its memory; --revoke_deadline bounds it.", quantiles("swiftcache_reclaim_seconds", "engine")),
        ("Waits for lent memory", "s", "From a donor's need to its memory.", quantiles("swiftcache_reclaim_wait_seconds", "engine")),
        ("Late reclaims", "percentunit", "Share over --revoke_deadline, over five minutes.", [("{{engine}}", "engine:swiftcache_reclaim_late:ratio_5m")]),
        ("Stall", "s", "Per step that streams KV of leases: time that computing stood still.", quantiles("swiftcache_kv_stall_seconds", "engine")),
        ("Decode bound", "s", "Least time of an output token of the longest sequence that an engine's memory and leases hold. --max_tpot refuses a prompt by the same rule.",
         [("{{engine}} {{transport}}", "swiftcache_decode_bound_seconds")])],
}

ENGINES = {
    "Steps": [
        ("Step time", "s", "", quantiles("swiftcache_step_seconds", "engine", of=ENGINE)),
        ("Batch", "short", "Mean of a step.",
         [("{{engine}} sequences", mean("swiftcache_step_sequences", "engine", of=ENGINE)),
          ("{{engine}} tokens", mean("swiftcache_step_tokens", "engine", of=ENGINE))]),
        ("Steps", "ops", "Cut short: for a lease; they go on later, or begin anew.",
         [("{{engine}}", rate("swiftcache_steps_total", "engine", of=ENGINE)),
          ("{{engine}} cut short", rate("swiftcache_steps_cut_total", "engine", of=ENGINE))]),
        ("First token", "s", "From arrival at the engine.", quantiles("swiftcache_time_to_first_token_seconds", "engine", of=ENGINE)),
        ("Between tokens", "s", "", quantiles("swiftcache_inter_token_latency_seconds", "engine", of=ENGINE)),
        ("Prefill by phase", "s", "Mean time from arrival to first token; load and store are beside the others.",
         [("{{engine}} {{phase}}", mean("swiftcache_prefill_phase_seconds", "engine", "phase", of=ENGINE))])],
    "Requests": [
        ("Under way", "short", "",
         [("{{engine}} running", f"swiftcache_running_requests{ENGINE}"), ("{{engine}} waiting", f"swiftcache_waiting_requests{ENGINE}")]),
        ("Wait for the first step", "s", "", quantiles("swiftcache_request_queue_time_seconds", "engine", of=ENGINE)),
        ("Ended", "reqps", "By status; refused ones by reason.",
         [("{{engine}} {{status}}", rate("swiftcache_requests_total", "engine", "status", of=ENGINE)),
          ("{{engine}} finished: {{finished_reason}}", rate("swiftcache_requests_finished_total", "engine", "finished_reason", of=ENGINE)),
          ("{{engine}} refused: {{reason}}", rate("swiftcache_requests_refused_total", "engine", "reason", of=ENGINE)),
          ("{{engine}} starved: {{end}}", rate("swiftcache_requests_starved_total", "engine", "end", of=ENGINE))]),
        ("Whole requests", "s", "From arrival at the engine to the last token.", quantiles("swiftcache_e2e_request_latency_seconds", "engine", of=ENGINE)),
        ("Length of prompts", "short", "Tokens.", quantiles("swiftcache_request_prompt_tokens", "engine", of=ENGINE)),
        ("Length of answers", "short", "Tokens.", quantiles("swiftcache_request_generation_tokens", "engine", of=ENGINE))],
    "KV memory": [
        ("Blocks", "short", "free: with those of the prefix cache that nobody uses.",
         [("{{engine}} {{state}}", f"swiftcache_kv_blocks{ENGINE}"), ("{{engine}} cached", f"swiftcache_kv_cached_blocks{ENGINE}")]),
        ("Used", "percentunit", "Of the own blocks, those that requests hold.", [("{{engine}}", f"engine:swiftcache_kv_blocks_used:ratio{ENGINE}")]),
        ("Prefix cache", "percentunit", "Share of prompt tokens that it had.",
         [("{{engine}}", f"{rate('vllm:prefix_cache_hits_total', 'engine', of=ENGINE)} / {rate('vllm:prefix_cache_queries_total', 'engine', of=ENGINE)}")]),
        ("Evictions", "ops", "Cached blocks given up for their room.", [("{{engine}}", rate("swiftcache_kv_blocks_evicted_total", "engine", of=ENGINE))]),
        ("Preemptions", "ops", "Sequences that lost their blocks, and are computed again.", [("{{engine}}", rate("swiftcache_preemptions_total", "engine", of=ENGINE))])],
    "Process": [
        ("Processor", "short", "Cores that are busy.", [("{{engine}}", rate("process_cpu_seconds_total", "engine", of=ENGINE))]),
        ("Memory", "bytes", "", [("{{engine}} resident", f"process_resident_memory_bytes{ENGINE}"), ("{{engine}} virtual", f"process_virtual_memory_bytes{ENGINE}")]),
        ("Up", "s", "Since it was started.", [("{{engine}}", f"time() - process_start_time_seconds{ENGINE}")]),
        ("Build", "short", "", [("{{engine}} {{version}} {{backend}} {{isa}}", f"swiftcache_build_info{ENGINE}")]),
        ("Weights", "short", "As stored, and as products read them.",
         [("{{engine}} {{stored}} as {{packed}}", f"swiftcache_weights_info{ENGINE}")])],
}

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
DASHBOARDS = {  # file: (title, the metric and label of its filter, its panels)
    "overview": ("SwiftCache: cluster", "label_values(swiftcache_running_requests, model_name)", OVERVIEW),
    "leases": ("SwiftCache: leases", "label_values(swiftcache_running_requests, model_name)", LEASES),
    "engines": ("SwiftCache: engines", "label_values(swiftcache_running_requests, engine)", ENGINES),
}


def panels(rows):
    number, y = itertools.count(1), 0
    for heading, shown in rows.items():
        yield {"id": next(number), "type": "row", "title": heading, "collapsed": False, "gridPos": {"h": 1, "w": ROW_WIDTH, "x": 0, "y": y}}
        for i, (title, unit, description, expressions) in enumerate(shown):
            column, line = i % (ROW_WIDTH // PANEL_WIDTH), i // (ROW_WIDTH // PANEL_WIDTH)
            yield {"id": next(number), "type": "timeseries", "title": title, "description": description, "datasource": SOURCE,
                   "gridPos": {"h": PANEL_HEIGHT, "w": PANEL_WIDTH, "x": PANEL_WIDTH * column, "y": y + 1 + PANEL_HEIGHT * line},
                   "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                   "targets": [{"refId": chr(ord("A") + n), "expr": expression, "legendFormat": legend}
                               for n, (legend, expression) in enumerate(expressions)]}
        y += 1 + PANEL_HEIGHT * -(-len(shown) // (ROW_WIDTH // PANEL_WIDTH))


def text(file, title, values, rows):
    """One panel a line, so that a change of one is a change of one."""
    name = "model" if values.endswith("model_name)") else "engine"
    board = {"uid": f"swiftcache-{file}", "title": title, "tags": ["swiftcache"], "schemaVersion": 39, "editable": True, "refresh": "5s",
             "time": {"from": "now-30m", "to": "now"},
             "templating": {"list": [
                 {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                 {"name": name, "label": name, "type": "query", "datasource": SOURCE, "query": values, "refresh": 2, "multi": True,
                  "includeAll": True, "allValue": ALL[name], "current": {"text": "All", "value": "$__all"}}]}}
    return json.dumps(board)[:-1] + ', "panels": [\n' + ",\n".join(json.dumps(panel) for panel in panels(rows)) + "\n]}\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(f"dashboards.py: unknown arguments {sys.argv[1:]}; wanted: nothing, or --check")
    code = 0
    for file, (title, values, rows) in DASHBOARDS.items():
        path, wanted = FOLDER / f"{file}.json", text(file, title, values, rows)
        if sys.argv[1:] == []:
            path.write_text(wanted)
        elif not path.exists() or path.read_text() != wanted:
            print(f"{path} is not what {__file__} writes: run that")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
