#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prometheus' own checks of what deploy/observability gives it, and each alert firing and not firing; the dashboards
# are what their source says. tests/e2e/observability_test.py asks a live cluster what they ask.
set -euo pipefail
cd "$(dirname "$0")/../.."
deploy/observability/grafana/dashboards.py --check
bin=$(tests/observability/prometheus.sh 2>&1) || { echo "skipped: $bin"; exit 77; }
PATH=$bin:$PATH
promtool check config deploy/observability/prometheus.yml
promtool check config deploy/observability/prometheus-host.yml
promtool test rules tests/observability/alerts_test.yml
for alert in $(sed -n 's/^ *- alert: //p' deploy/observability/alerts.yml); do
  [ "$(grep -c "$alert" tests/observability/alerts_test.yml)" -ge 2 ] || { echo "$alert is not tested firing and not firing"; exit 1; }
done
