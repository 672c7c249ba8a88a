#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants small bugs in a room, one at a time, and says which of them its tests notice (README.md beside this).

    tests/mutants/run.py engine/lease broker/ledger      # 150 of each room; goes on where it was stopped
    tests/mutants/run.py --planted                       # the bugs of planted.py, each of which must be noticed
    tests/mutants/run.py --again FILE:LINE:COLUMN KIND   # one, with what its tests say
"""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile

import mutate
import planted

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / 'build/mutants'
CHECKERS = re.compile(r'^\S.*\b(CheckInvariants|CheckSums|CheckLease|CheckAgainstMembers|SameSums)\(.*\{$')
ROOMS = {  # what notices: the room's own tests, then simulations that use it
    'engine/lease': {'test': 'engine_lease_test', 'wider': [('sim_test', {'SIM_SEEDS': '100'}),
                                                            ('engine_exec_sharing_soak_test', {'SOAK_SEEDS': '3'})]},
    'broker/ledger': {'test': 'broker_ledger_test', 'wider': [('broker_loop_test', {}), ('sim_test', {'SIM_SEEDS': '100'})]},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rooms', nargs='*', help='of: ' + ', '.join(ROOMS))
    parser.add_argument('--count', type=int, default=150, help='of each room; 0: all')
    parser.add_argument('--seed', type=int, default=1, help='which of them')
    parser.add_argument('--jobs', type=int, default=2)
    parser.add_argument('--timeout', type=int, default=60, help='seconds of processor time for one test; 10 times that by the clock')
    parser.add_argument('--through', default='nice', help='command that tests are run through')
    parser.add_argument('--least', type=float, default=0, help='percent that must be noticed')
    parser.add_argument('--planted', action='store_true')
    parser.add_argument('--again', nargs=2, metavar=('PLACE', 'KIND'))
    options = parser.parse_args()
    unknown = [room for room in options.rooms if room not in ROOMS]
    if unknown or not (options.rooms or options.planted or options.again):
        parser.error(f'wanted --planted, --again, or rooms of {", ".join(ROOMS)}; found {unknown or "nothing"}')
    bench = Bench(options.timeout, shlex.split(options.through))
    if options.again:
        return again(bench, *options.again)
    good = not options.planted or run_planted(bench)
    return 0 if all([run_room(bench, room, options) for room in options.rooms]) and good else 1


class Bench:
    """Compiles what a changed file is part of, links tests with it, and runs them."""

    def __init__(self, timeout, through):
        self.timeout, self.through = timeout, through
        if not (BUILD / 'build.ninja').exists():
            call(['cmake', '--preset', 'dev', '-B', BUILD, '-DCMAKE_CXX_FLAGS=-O1 -g0'])
        self.compiles = {e['file']: e['command'] for e in json.loads((BUILD / 'compile_commands.json').read_text())}
        self.links = {}

    def build(self, tests):
        call(['cmake', '--build', BUILD, '-j2', '--target', *tests])
        for test in tests:
            self.links[test] = out(['ninja', '-C', BUILD, '-t', 'commands', test]).strip().split('\n')[-1]

    def users(self, file, test):
        """Sources that are compiled into the test or its room and include the header."""
        room = str(pathlib.Path(file).parent)
        objects = re.findall(r'\S+\.o\b', self.links[test])
        sources = [s for s in self.compiles if s.startswith(f'{ROOT}/{room}/') or self.object_of(s) in objects]
        depends = out(['ninja', '-C', BUILD, '-t', 'deps', *(self.object_of(s) for s in sources)])
        users, current = [], None
        for line in depends.split('\n'):
            if line and not line.startswith(' '):
                current = line.split(':')[0]
            elif line.strip().endswith('/' + file) and current:
                users += [s for s in sources if self.object_of(s) == current]
        return users

    def object_of(self, source):
        return re.search(r'-o (\S+)', self.compiles[source])[1]

    def require_sound(self, tests):
        """Ends with an error where the program as it is fails one of these: then each mutant would count as noticed."""
        for test, environment, arguments in tests:
            with tempfile.TemporaryDirectory(dir=BUILD, prefix='unchanged-') as folder:
                if not self.passes(test, environment, arguments, {}, folder, verbose=False):
                    sys.exit(f'tests/mutants/run.py: {test} {" ".join(arguments)} fails without any mutant')

    def verdict(self, file, text, tests, verbose=False):
        """tests: (name, environment, arguments). Returns what noticed: a test, 'compiler', or None."""
        with tempfile.TemporaryDirectory(dir=BUILD, prefix='mutant-') as folder:
            changed = pathlib.Path(folder, file)
            changed.parent.mkdir(parents=True)
            changed.write_text(text)
            is_header = file.endswith('.h')
            sources = self.users(file, tests[0][0]) if is_header else [str(ROOT / file)]
            objects = {}
            for number, source in enumerate(sources):
                objects[self.object_of(source)] = made = f'{folder}/{number}.o'
                command = self.compiles[source].replace('ccache ', '')
                command = command.replace(self.object_of(source), made).replace(f'-I{ROOT}', f'-I{folder} -I{ROOT}')
                if not is_header:
                    command = command.replace(f'-c {source}', f'-c {changed}')
                if run(shlex.split(command), 300, verbose=verbose) != 0:
                    return 'compiler'
            for test, environment, arguments in tests[:1] if is_header else tests:
                if not self.passes(test, environment, arguments, objects, folder, verbose):
                    return test
        return None

    def passes(self, test, environment, arguments, objects, folder, verbose):
        link, extra = self.links[test], []
        for old, new in objects.items():
            link, count = re.subn(rf'(?<=\s){re.escape(old)}(?=\s)', new, link)
            if count == 0:
                extra.append(new)  # before the archives: what is there already is not taken from them
        binary = f'{folder}/{test}'
        link = link.replace(f'-o tests/{test} ', f'{" ".join(extra)} -o {binary} ')
        subprocess.run(link, shell=True, cwd=BUILD, check=True)
        command = [*self.through, binary, '--gtest_brief=1', '--gtest_fail_fast', *arguments]
        return run(command, self.timeout, environment, verbose) == 0


def call(command):
    subprocess.run([str(part) for part in command], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def out(command):
    return subprocess.run([str(part) for part in command], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def run(command, timeout, environment=None, verbose=False):
    """The exit status; 1 where it takes too long: a machine that is busy with something else does not count."""
    sink = None if verbose else subprocess.DEVNULL
    try:
        return subprocess.run(command, cwd=BUILD, timeout=10 * timeout, stdout=sink, stderr=sink,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (timeout, timeout)),
                              env={**os.environ, **(environment or {})}).returncode
    except subprocess.TimeoutExpired:
        return 1


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def candidates(room):
    """All mutants of the room, without those of functions that look for bugs: tests call these, and nothing else does."""
    found = []
    for path in sorted((ROOT / room).glob('*')):
        if path.suffix not in ('.cc', '.h'):
            continue
        text, checks, skipped = path.read_text(), False, set()
        for number, line in enumerate(text.split('\n'), 1):
            checks = checks or CHECKERS.match(line) is not None
            if checks:
                skipped.add(number)
            checks = checks and line != '}'
        mutants = mutate.mutants_of(str(path.relative_to(ROOT)), text)
        found += [m for m in mutants if m.line not in skipped and (path.suffix == '.cc' or m.kind != 'constant')]
    return found


def tests_of(room):
    return [(ROOMS[room]['test'], {}, [])] + [(name, environment, []) for name, environment in ROOMS[room]['wider']]


def run_room(bench, room, options):
    tests = tests_of(room)
    bench.build([test for test, _, _ in tests])
    bench.require_sound(tests)
    wanted = candidates(room)
    if options.count:
        wanted = random.Random(options.seed).sample(wanted, min(options.count, len(wanted)))
    texts = {m.file: (ROOT / m.file).read_text() for m in wanted}
    tested = digest(''.join(p.read_text() for p in sorted((ROOT / 'tests' / room).glob('*.*'))))
    log = BUILD / f'{room.replace("/", "-")}.jsonl'
    known = {}
    for entry in map(json.loads, log.read_text().splitlines() if log.exists() else []):
        if entry['by'] or entry['tested'] == tested:  # what survived other tests is tried again
            known[entry['key']] = entry['by']

    def key_of(mutant):
        return f'{mutant.name} {mutant.old!r} -> {mutant.new!r} {digest(texts[mutant.file])}'

    def judge(mutant):
        return mutant, bench.verdict(mutant.file, mutant.apply(texts[mutant.file]), tests)

    todo = [m for m in wanted if key_of(m) not in known]
    print(f'{room}: {len(wanted)} mutants, {len(wanted) - len(todo)} judged before', flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, log.open('a') as file:
        for done, (mutant, by) in enumerate(pool.map(judge, todo), 1):
            known[key_of(mutant)] = by
            file.write(json.dumps({'key': key_of(mutant), 'by': by, 'tested': tested}) + '\n')
            file.flush()
            if done % 10 == 0 or by is None:
                print(f'  {done}/{len(todo)} {mutant.name}: {by or "SURVIVES"}', flush=True)
    by = {m: known[key_of(m)] for m in wanted}
    built = [m for m in wanted if by[m] != 'compiler']
    survivors = sorted((m for m in built if by[m] is None), key=lambda m: (m.file, m.line, m.column))
    noticed = len(built) - len(survivors)
    own = sum(by[m] == ROOMS[room]['test'] for m in built)
    share = 100 * noticed / max(1, len(built))
    print(f'{room}: {noticed} of {len(built)} noticed ({share:.1f} %), {own} of them by {ROOMS[room]["test"]}; '
          f'{len(wanted) - len(built)} more do not compile. Survivors:')
    for m in survivors:
        print(f'  {m.name}: {m.old!r} -> {m.new!r}')
    return share >= options.least


def run_planted(bench):
    bench.build(sorted({bug.test for bug in planted.BUGS}))
    bench.require_sound([(test, {}, [f'--gtest_filter={pattern}']) for test, pattern in sorted({(bug.test, bug.filter) for bug in planted.BUGS})])
    good = True
    for bug in planted.BUGS:
        changed = bug.apply((ROOT / bug.file).read_text())
        if changed is None:
            print(f'{bug.name}: {bug.file} has changed: planted.py wants mending')
            good = False
            continue
        by = bench.verdict(bug.file, changed, [(bug.test, {}, [f'--gtest_filter={bug.filter}'])])
        print(f'{bug.name}: {"noticed by " + by if by else "NOT NOTICED"}', flush=True)
        good = good and by == bug.test
    return good


def again(bench, place, kind):
    room = str(pathlib.Path(place.split(':')[0]).parent)
    bench.build([test for test, _, _ in tests_of(room)])
    bench.require_sound(tests_of(room))
    for mutant in candidates(room):
        if mutant.name == f'{place} {kind}':
            text = (ROOT / mutant.file).read_text()
            print(f'{mutant.old!r} -> {mutant.new!r}')
            print('noticed by', bench.verdict(mutant.file, mutant.apply(text), tests_of(room), verbose=True))
            return 0
    print(f'no mutant {place} {kind}')
    return 2


if __name__ == '__main__':
    shutil.which('ninja') or sys.exit('tests/mutants/run.py: wanted ninja and the build tools of deploy/install-deps.sh')
    sys.exit(main())
