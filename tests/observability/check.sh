#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prometheus' own checks of what deploy/observability gives it, and each alert firing and not firing; the dashboards
# are what their source says, and nothing asks for what no server has. tests/e2e/observability_test.py asks a live cluster what they ask.
set -euo pipefail
cd "$(dirname "$0")/../.."
deploy/observability/grafana/dashboards.py --check
tests/observability/names.py
bin=$(tests/observability/prometheus.sh 2>&1) || { echo "skipped: $bin"; exit 77; }
PATH=$bin:$PATH
promtool check config deploy/observability/prometheus.yml
promtool check config deploy/observability/prometheus-host.yml
promtool test rules tests/observability/alerts_test.yml
sed -n 's/^ *- alert: //p' deploy/observability/alerts.yml | while read -r alert; do
  for wanted in "\{alertname: $alert, .*exp_alerts: \[\]\}" "alertname=\"$alert\", alertstate=\"firing\"|- alertname: $alert$"; do
    grep -qE "$wanted" tests/observability/alerts_test.yml || { echo "$alert is not tested firing and not firing: no $wanted"; exit 1; }
  done
done
