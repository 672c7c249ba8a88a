# SPDX-License-Identifier: Apache-2.0
"""Where servers listen, and who is told that others reach them there."""
import subprocess
import urllib.request

import pytest
from conftest import WAIT, Process, wait_until


def test_a_log_warns_of_what_is_not_on_loopback(cluster):
    warning = "is not on loopback, and no key is asked for"
    broker = cluster.start_broker(listen="0.0.0.0:0", http="localhost:0")
    wait_until(lambda: f"{broker.grpc} (--listen) {warning}" in broker.text(), WAIT, "the warning")
    cluster.stop()
    assert broker.text().count(warning) == 1


def test_localhost_is_127_0_0_1_though_it_has_another_address(binaries, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("::1 localhost\n127.0.0.1 localhost\n")
    with_hosts = ["unshare", "-rm", "sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"]
    if subprocess.run([*with_hosts, "true"], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    broker = Process([*with_hosts, binaries / "swiftcache-broker", "--listen=127.0.0.1:0", "--http_listen=localhost:0"],
                     tmp_path / "log")
    try:
        host, port = broker.http.split(":")
        assert host == "localhost"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=WAIT) as reply:
            assert reply.status == 200
    finally:
        assert broker.stop() == 0
