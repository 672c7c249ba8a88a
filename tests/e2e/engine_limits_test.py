# SPDX-License-Identifier: Apache-2.0
"""What an operator says of one engine: --lend, --lend_reserve, --borrow. It stands whoever the broker is."""
import json
import time

import pytest

from conftest import WAIT, wait_until
from leasing import ARENA, DONOR, hits, leasing, talks  # noqa: F401

DONOR_BLOCKS = 256
RESERVE_BLOCKS = 192  # 3 MiB


def listed(leasing, *command):
    return json.loads(leasing.ctl(*command, "-o", "json").stdout)


def expect_limits(leasing):
    """Nobody has what it may not have, nor had it at any time."""
    assert leasing.count("shut", "swiftcache_lease_granted_total") == 0
    assert leasing.count("alone", "swiftcache_lease_borrowed_total") == 0
    for lease in listed(leasing, "lease", "ls")["leases"]:
        assert (lease["donor"], lease["borrower"]) == ("kept", "chat"), lease
        assert lease["donor_first_block"] >= RESERVE_BLOCKS, lease
    assert leasing.blocks("kept", "leased_out") <= DONOR_BLOCKS - RESERVE_BLOCKS


def expect_listed(leasing):
    said = {engine["engine"]: (engine["lends"], engine["lend_reserve_bytes"], engine["borrows"])
            for engine in listed(leasing, "top", "--frames=1")["engines"] if engine["state"] == "READY"}
    wanted = {"shut": (False, 4 << 20, True), "kept": (True, 3 << 20, True), "chat": (True, 0, True),
              "alone": (False, 768 << 10, False)}
    for engine, limits in said.items():
        assert limits == wanted[engine], engine
    return len(said) == len(wanted)


def test_what_an_engine_may_lend_and_borrow_stands_whoever_the_broker_is(leasing, stubs, talks):
    """Two engines outgrow their memory: one may borrow, the other not; of two idle ones one lends a quarter, the other
    nothing. The broker is killed, and the next one gives out all anew."""
    leasing.begin()
    leasing.engine("shut", DONOR, "--lend=false")
    leasing.engine("kept", DONOR, "--lend_reserve=3MiB")
    leasing.engine("chat", ARENA)
    leasing.engine("alone", ARENA, "--borrow=false", "--lend=false")
    leasing.ready("chat", "alone")
    load = leasing.load(stubs, talks, "chat", "alone", clients=2)

    def lends_all_it_may():
        expect_limits(leasing)
        return leasing.blocks("kept", "leased_out") == DONOR_BLOCKS - RESERVE_BLOCKS

    load.until(lends_all_it_may, "a quarter of the one that may is lent").until(hits(leasing, "chat"), "hits in leases")
    wait_until(lambda: expect_listed(leasing), WAIT, "the broker lists all engines")
    before = {lease[0] for lease in leasing.leases()}
    where = {"listen": leasing.broker.grpc, "http": leasing.broker.http}
    leasing.broker.kill()
    leasing.start_broker(*leasing.broker_flags, **where)
    load.until(lambda: expect_listed(leasing), "the new broker lists all engines, with their limits from the first moment")
    load.until(lambda: before <= {lease[0] for lease in leasing.leases()}, "it knows the leases")
    leasing.ctl("lease", "revoke", *before, check=False)  # some may have ended meanwhile
    load.until(lambda: not before & {lease[0] for lease in leasing.leases()}, "they have ended")
    load.until(lends_all_it_may, "it has lent as much again").until(hits(leasing, "chat"), "hits in the new leases").stop()
    expect_limits(leasing)
    assert leasing.count("alone", "swiftcache_kv_blocks_evicted_total") > 0, "it had no need of more than it has"
    leasing.finish()


def test_leases_that_nobody_uses_any_more_go_back_unasked(leasing, stubs, talks, pytestconfig):
    """The least time for which they are kept is a minute."""
    if not pytestconfig.getoption("--long"):
        pytest.skip("takes over a minute: --long")
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA)
    leasing.ready("chat")
    leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").stop()
    ended, lent = time.monotonic(), leasing.blocks("donor", "leased_out")
    wait_until(lambda: leasing.blocks("donor", "leased_out") < lent, 2 * WAIT, "some is given back")
    assert time.monotonic() - ended > 50
    wait_until(lambda: leasing.leases() == [] and leasing.blocks("donor", "leased_out") == 0, WAIT, "all is")
    assert leasing.count("chat", "swiftcache_lease_given_back_total") == leasing.count("chat", "swiftcache_lease_borrowed_total")
    for name, ends in ("chat", "lost"), ("donor", "revoked"), ("donor", "fenced"):
        assert leasing.count(name, f"swiftcache_lease_{ends}_total") == 0
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in new leases")
    load.stop()
    leasing.finish()
