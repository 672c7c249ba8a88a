# SPDX-License-Identifier: Apache-2.0
"""Where servers listen, and who is told that others reach them there."""
from conftest import WAIT, wait_until


def test_a_log_warns_of_what_is_not_on_loopback(cluster):
    warning = "is not on loopback, and no key is asked for"
    broker = cluster.start_broker(listen="0.0.0.0:0", http="localhost:0")
    wait_until(lambda: f"{broker.grpc} (--listen) {warning}" in broker.text(), WAIT, "the warning")
    cluster.stop()
    assert broker.text().count(warning) == 1
