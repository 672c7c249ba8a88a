# SPDX-License-Identifier: Apache-2.0
"""Bugs that would let wrong KV through, each in the line that keeps it out, and the test that must notice it."""
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    edits: tuple  # of what is there once, and what is put in its place
    test: str
    filter: str = '*'

    def apply(self, text):
        """The source with the bug; None: it has changed since, and planted.py wants mending."""
        for old, new in self.edits:
            if text.count(old) != 1:
                return None
            text = text.replace(old, new)
        return text


END_READS = '  if (sharing_) sharing_->borrowing().EndReads(outcome->lost);\n'
NOTE_LOST = '  departures_.NoteLost(lost);\n'
FINISH_REGIONS = '  if (!taken.empty()) FinishRegions();\n'
FENCE = '  actions_.emplace_back(Fence{entry.lease.id});\n'
TAKE_BACK = '  TakeBackExtent(entry, fenced);\n'
COMMIT = '  scheduler_.Commit(plan);\n'

BUGS = [
    Bug('a fence without a new generation', 'engine/transport/shm_donor.cc',
        (('if (first) (void)generations_.Advance(grant->word);', ''),), 'engine_transport_test', 'Shm*'),
    Bug('an epoch is used twice', 'engine/transport/shm_generations.cc',
        (('generation->load(std::memory_order_relaxed) + 1', '(generation->load(std::memory_order_relaxed) + 1) % 2'),),
        'engine_transport_test', 'Shm*'),
    Bug('memory is taken back before the fence', 'engine/lease/donor.cc', ((FENCE + TAKE_BACK, TAKE_BACK + FENCE),),
        'engine_lease_test'),
    Bug('memory of a grant that came too late is taken back before the fence', 'engine/lease/donor.cc',
        (('    actions_.emplace_back(Fence{id});\n    return EndUngranted(*entry, /*cleared=*/true, entry->why);\n',
          '    EndUngranted(*entry, /*cleared=*/true, entry->why);\n    actions_.emplace_back(Fence{id});\n    return;\n'),),
        'engine_lease_test'),
    Bug('a step is committed before its leases are checked', 'engine/exec/step_loop.cc',
        ((END_READS, ''), (COMMIT, COMMIT + END_READS)), 'engine_exec_test', 'Sharing*'),
    Bug('what a step lost is looked for behind what came home', 'engine/exec/borrowing.cc',
        ((NOTE_LOST, ''), (FINISH_REGIONS, FINISH_REGIONS + NOTE_LOST)), 'engine_exec_test', 'Sharing*'),
    Bug('an abort of clearing without scrub', 'engine/kv/block_pool.cc',
        (('  local_.free.Insert(first, count);\n  dirty_.Unite(first, count);\n', '  local_.free.Insert(first, count);\n'),),
        'engine_kv_test'),
    Bug('a place that is given up before it was scrubbed is forgotten', 'engine/kv/block_pool.cc',
        (('if (dirty_taken_.erase(place.index) > 0) dirty_.Unite(place.index, 1);', 'dirty_taken_.erase(place.index);'),),
        'engine_kv_test'),
    Bug('a donor forgets the id of a lease that has ended', 'engine/lease/donor.cc',
        (('why});\n  ended_.Add(id);\n', 'why});\n'),), 'engine_lease_test'),
    Bug('a borrower forgets the id of a lease that has ended', 'engine/lease/borrower.cc',
        (('  actions_.emplace_back(Close{id});\n  ended_.Add(id);\n', '  actions_.emplace_back(Close{id});\n'),),
        'engine_lease_test'),
]
