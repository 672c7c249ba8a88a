# SPDX-License-Identifier: Apache-2.0
"""Whether sharing pays, and for whom: what `lease ls` says of it between real engines, in bytes and in tokens."""
import json

from conftest import wait_until
from leasing import ARENA, DONOR, WAIT, hits, leasing, talks  # noqa: F401

EFFECTS = {"saved_tokens": "saved", "again_for_loans_tokens": "again_for_loans",
           "again_for_losses_tokens": "again_for_losses"}


def listed(leasing):
    return json.loads(leasing.ctl("lease", "ls", "-o", "json").stdout)


def worth(leasing):
    """({(donor model, borrower model): pair}, {model: its line})"""
    return of(listed(leasing))


def of(listed):
    return ({(pair["donor_model"], pair["borrower_model"]): pair for pair in listed["pairs"]},
            {model["model"]: model for model in listed["models"]})


def ended(pair, reason):
    return sum(pair["ended"].get(reason, {}).values())


def lent_to(engine, model):
    """Byte seconds, as its metrics have them from its first lease to that model on."""
    return sum(value for key, value in engine.metrics().items()
               if key.startswith("swiftcache_lease_byte_seconds_total{") and f'borrower_model="{model}"' in key)


def expect_sums(listed):
    pairs, models = of(listed)
    lent = sum(model["lent_byte_seconds"] for model in models.values())
    assert lent == sum(model["borrowed_byte_seconds"] for model in models.values()) > 0
    assert lent == sum(pair["lent_byte_seconds"] for pair in pairs.values())
    for model in models.values():
        again = model["again_for_loans_tokens"] + model["again_for_losses_tokens"]
        assert model["net_tokens"] == model["saved_tokens"] - again
    return pairs, models


def test_lease_ls_says_who_lent_what_to_whom_and_what_it_was_worth(leasing, stubs, talks):
    """Two engines of one model lend to two other models; the broker is another one in the end."""
    leasing.begin()
    leasing.engine("donor", DONOR, model_name="giver")
    leasing.engine("donor2", DONOR, model_name="giver")
    leasing.engine("chat", ARENA, "--lend=false")
    leasing.engine("code", ARENA, "--lend=false")
    leasing.ready("chat", "code")
    load = leasing.load(stubs, talks, "chat", "code", clients=2).until(hits(leasing, "chat", "code"), "hits in leases")
    load.until(lambda: {("giver", "chat"), ("giver", "code")} <= worth(leasing)[0].keys(), "both are in the accounts")

    lease = next(lease[0] for lease in leasing.leases() if lease[1] == "granted" and lease[3] == "chat")
    leasing.ctl("lease", "revoke", lease)
    load.until(lambda: ended(worth(leasing)[0]["giver", "chat"], "operator") > 0, "who revoked it is counted")
    leasing.ctl("lease", "limit", "code", "0")
    load.until(lambda: ended(worth(leasing)[0]["giver", "code"], "limit") > 0, "and which limit did")
    leasing.ctl("lease", "limit", "code", "none")
    load.until(lambda: worth(leasing)[1]["chat"]["saved_tokens"] > 0, "borrowing saves something").stop()
    seen = listed(leasing)
    pairs, before = expect_sums(seen)
    assert before["giver"]["borrowed_byte_seconds"] == before["chat"]["lent_byte_seconds"] == 0
    assert pairs["giver", "chat"]["lent_bytes"] == sum(
        lease["bytes"] for lease in seen["leases"] if lease["borrower"] == "chat" and lease["state"] != "OFFERED")
    for words in ("DONOR MODEL", "NEEDED BACK", "NET TOKENS"):
        assert words in leasing.ctl("lease", "ls").stdout

    where = {"listen": leasing.broker.grpc, "http": leasing.broker.http}
    leasing.broker.kill()
    leasing.start_broker(*leasing.broker_flags, **where)

    def heard():
        """Of both donors: one may have lent most, the other may have been told to revoke."""
        pairs, models = worth(leasing)
        return ("giver", "chat") in pairs and ended(pairs["giver", "chat"], "operator") > 0 and \
            models["chat"]["borrowed_byte_seconds"] >= before["chat"]["borrowed_byte_seconds"]
    wait_until(heard, WAIT, "the engines tell the next broker")
    expect_sums(listed(leasing))

    def told():
        """Heartbeats have said what metrics say, now that nobody asks for anything."""
        return all(worth(leasing)[1]["chat"][name] == leasing.count("chat", "swiftcache_sharing_tokens_total", effect=effect)
                   for name, effect in EFFECTS.items())
    wait_until(told, WAIT, "lease ls has the figures of the metrics")
    scraped = sum(lent_to(leasing.engines[name], "chat") for name in ("donor", "donor2"))
    assert scraped >= before["chat"]["borrowed_byte_seconds"]
    leasing.finish()
