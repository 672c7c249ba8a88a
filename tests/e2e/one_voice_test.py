# SPDX-License-Identifier: Apache-2.0
"""The donor alone ends a lease: whatever happens to the broker, or between it and an engine, leases live on; and who ends
in order gives back. With --long every fault strikes 20 times, each time at another moment."""
import random
import re
import time

import pytest
from conftest import wait_until
from leasing import ARENA, DONOR, WAIT, hits, leasing, pytest_generate_tests, talks  # noqa: F401


class Ends:
    """Which of the leases that the borrower had in use when this was made have been lost, fenced or asked back since. One
    that it has not opened yet may end: nothing lies there."""

    def __init__(self, leasing):
        self.leasing = leasing
        self.lived = self._leases("chat", r" of \d+ blocks from \S+ is in use") - self._ended()
        assert self.lived

    def _leases(self, name, event):
        return set(re.findall(rf"lease (\d+){event}", self.leasing.engines[name].text()))

    def _ended(self):
        wait_until(lambda: len(self._leases("chat", " is lost")) == self.leasing.count("chat", "swiftcache_lease_lost_total")
                   and len(self._leases("donor", " was fenced")) == self.leasing.count("donor", "swiftcache_lease_fenced_total"),
                   WAIT, "the logs tell of all ends")
        asked_back = r" came back: .*, (?!0 )\S+ after it was asked back"
        return self._leases("chat", " is lost") | self._leases("donor", f"(?: was fenced|{asked_back})")

    def none(self):
        return not self.lived & self._ended()


@pytest.mark.parametrize("away", [1, 5, 30])
def test_a_broker_that_is_away_ends_no_lease_and_its_limits_stand(leasing, stubs, talks, seed, away, pytestconfig):
    """Killed under load and back after so long; one engine finds the new one four seconds later than the other."""
    if away == 30 and not pytestconfig.getoption("--long"):
        pytest.skip("takes over half a minute: --long")
    rng = random.Random(seed)
    leasing.begin()
    late = rng.choice(["donor", "chat"])
    leasing.engine("donor", DONOR, *[leasing.wire()] * (late == "donor"))
    leasing.engine("chat", ARENA, *[leasing.wire()] * (late == "chat"))
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    leasing.ctl("lease", "limit", "chat", "200MiB")
    where = {"listen": leasing.broker.grpc, "http": leasing.broker.http}
    ends, asked = Ends(leasing), load.asked
    print(f"the broker is killed after {asked} answers, with {len(ends.lived)} leases in use; {late} comes late")
    leasing.broker.kill()
    leasing.wires[0].cut()
    time.sleep(away)
    leasing.start_broker(*leasing.broker_flags, **where)
    time.sleep(4)
    leasing.wires[0].mend()
    load.until(lambda: ends.lived <= {lease[0] for lease in leasing.leases()}, "the new broker knows the leases that live")
    load.until(hits(leasing, "chat"), "hits in leases").stop()
    print(f"{load.asked - asked} answers since")
    assert ends.none() and load.asked > asked
    assert "200 MiB" in leasing.ctl("lease", "ls").stdout
    leasing.finish()


def borrow_of_two(leasing, stubs, talks, **load):
    """The load of an engine that has leases of two others."""
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("donor2", DONOR)
    leasing.engine("chat", ARENA, "--revoke_deadline=1s")  # to give back what it has, on a loaded machine too
    leasing.ready("chat")
    return leasing.load(stubs, talks, "chat", **load).until(
        lambda: {"donor", "donor2"} == {lease[2] for lease in leasing.leases()}, "it leases of both")


def two_rounds(talks):
    """As many answers as all clients together want in two rounds."""
    return 2 * len(talks.conversations) * len(talks.turns)


def settle(load, talks, rng, missed):
    """Until clients, in two rounds and some moment more, have missed nothing of what they come back to. Returns what they
    have missed till then."""
    for _ in range(10):
        before = missed()
        load.answered(two_rounds(talks) + rng.randrange(30))
        if missed() == before:
            return before
    pytest.fail(f"{missed()} tokens were missed, and it goes on")


def test_an_engine_that_ends_in_order_gives_back_and_nothing_is_lost(leasing, stubs, talks, seed):
    """First a donor, whose borrower finds room at the other one, then the borrower itself; both under load. The other has
    room for all that clients come back to: once their borrower had it, nothing of it is computed again."""
    rng = random.Random(seed)
    load = borrow_of_two(leasing, stubs, talks)
    load.until(lambda: leasing.blocks("chat", "leased_in") >= 192, "room for a round and a half")
    again = settle(load, talks, rng, lambda: load.computed_again["chat"])
    lost = leasing.count("chat", "swiftcache_lease_lost_total")
    first = rng.choice(["donor", "donor2"])
    gone = leasing.engines.pop(first)
    assert gone.stop() == 0
    load.until(hits(leasing, "chat"), "hits in leases of the other").answered(two_rounds(talks))
    print(f"{first} ended; {load.computed_again['chat'] - again} tokens were computed again")
    assert load.computed_again["chat"] == again
    assert leasing.count("chat", "swiftcache_lease_lost_total") == lost
    assert "was fenced" not in gone.text() and "came back" in gone.text()
    load.end()
    other = ({"donor", "donor2"} - {first}).pop()
    assert leasing.blocks("chat", "leased_in") > 0
    assert leasing.engines.pop("chat").stop() == 0
    wait_until(lambda: leasing.blocks(other, "leased_out") == 0, WAIT, "all is given back")
    assert leasing.count(other, "swiftcache_lease_fenced_total") == 0
    leasing.engines["donor"] = leasing.engines.pop(other)
    leasing.finish()


def test_the_broker_and_the_donor_cannot_reach_each_other(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    leasing.engine("donor", DONOR, leasing.wire())
    leasing.engine("chat", ARENA)
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    print(f"the donor's wire is cut after {load.asked} answers")
    ends = Ends(leasing)
    leasing.wires[0].cut()
    load.until(lambda: leasing.leases() == [], "the broker takes the donor for dead")
    load.answered(rng.randrange(10, 30)).until(hits(leasing, "chat"), "hits in leases all the same")
    leasing.wires[0].mend()
    load.until(lambda: leasing.leases(), "the donor brings its leases back")
    load.until(hits(leasing, "chat"), "hits in leases").stop()
    assert ends.none()
    leasing.finish()


def test_the_broker_and_the_borrower_cannot_reach_each_other(leasing, stubs, talks, seed):
    rng = random.Random(seed)
    leasing.begin()
    leasing.engine("donor", DONOR)
    leasing.engine("chat", ARENA, leasing.wire())
    leasing.ready("chat")
    load = leasing.load(stubs, talks, "chat").until(hits(leasing, "chat"), "hits in leases").answered(rng.randrange(30))
    print(f"the borrower's wire is cut after {load.asked} answers")
    ends, deaths = Ends(leasing), leasing.broker.metric("swiftcache_broker_deaths_total")
    leasing.wires[0].cut()
    load.until(lambda: leasing.broker.metric("swiftcache_broker_deaths_total") > deaths,
               "the broker takes the borrower for dead, the gateway does not")
    load.answered(rng.randrange(10, 30)).until(hits(leasing, "chat"), "hits in leases all the same")
    assert leasing.leases() and leasing.blocks("donor", "leased_out") > 0
    leasing.wires[0].mend()
    load.until(lambda: leasing.broker.metric("swiftcache_broker_engines", state="ready") == 2, "it is seen again")
    load.until(hits(leasing, "chat"), "hits in leases").stop()
    assert ends.none()
    leasing.finish()


def test_what_an_engine_that_ends_in_order_gives_back_is_not_computed_again(leasing, stubs, talks, seed):
    """All conversations, 144 blocks, fit into the borrower's 48 and either donor's 256: when one of them ends under load,
    what lies there moves."""
    rng = random.Random(seed)
    load = borrow_of_two(leasing, stubs, talks, fresh=False)
    missed = settle(load, talks, rng, lambda: load.not_cached)
    first = rng.choice(["donor", "donor2"])
    holds = leasing.blocks(first, "leased_out")
    assert leasing.engines.pop(first).stop() == 0
    load.answered(two_rounds(talks)).stop()
    print(f"{first} ended, of which {holds:.0f} blocks were leased; {load.not_cached - missed} tokens were computed again")
    assert holds > 0 and load.not_cached == missed
    leasing.finish()
