# SPDX-License-Identifier: Apache-2.0
"""Small wrong changes of a C++ source: what a mutant is, and which a source has."""
import re
from dataclasses import dataclass

SWAPS = {  # clang-format puts spaces around them, and none around those of templates, pointers and signs
    'comparison': {' < ': ' <= ', ' <= ': ' < ', ' > ': ' >= ', ' >= ': ' > ', ' == ': ' != ', ' != ': ' == '},
    'arithmetic': {' + ': ' - ', ' - ': ' + ', ' * ': ' / ', ' / ': ' * ', ' % ': ' / ', ' += ': ' -= ', ' -= ': ' += ',
                   '++': '--', 'std::min': 'std::max', 'std::max': 'std::min'},
    'condition': {' && ': ' || ', ' || ': ' && ', 'return true;': 'return false;', 'return false;': 'return true;',
                  ' = true;': ' = false;', ' = false;': ' = true;'},
}
NUMBER = re.compile(r"(?<![\w.'\"])(\d+)(?![\w.'\"])")
CONDITION = re.compile(r'\bif \((?!const |auto |Member|Entry|!?\w+ \*)')
STATEMENT = re.compile(r'^\s+(?!.*= delete;|return\b(?!;)|const\b|auto\b|using\b|static\b|case\b|default\b|break;|class\b|struct\b|friend\b|'
                       r'explicit\b|else\b|for\b|while\b|switch\b|\}|//|#|public|private|CHECK|LOG)[\w(*+\-].*;\s*(//.*)?$')
DECLARATION = re.compile(r'^\s+(?:(?:std::|absl::|elastic::|kv::)?[A-Za-z_][\w:]*(?:<[^;=()]*>)?)(?: [*&]?|[*&] )(?:const )?\w+(?:,? ?\w*)*'
                         r'(?: = .*|\{.*|\(.*)?;\s*(//.*)?$')


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    column: int
    kind: str
    old: str
    new: str

    @property
    def name(self):
        return f'{self.file}:{self.line}:{self.column} {self.kind}'

    def apply(self, text):
        lines = text.split('\n')
        line = lines[self.line - 1]
        end = self.column + len(self.old)
        assert line[self.column:end] == self.old, self
        lines[self.line - 1] = line[:self.column] + self.new + line[end:]
        return '\n'.join(lines)


def code_of(line):
    """The line with its comment and the insides of its texts blanked, column by column."""
    line = re.sub(r'"(?:\\.|[^"\\])*"', lambda m: '"' + '~' * (len(m[0]) - 2) + '"', line)
    return line.split('//')[0]


def closing(code, start):
    """Where the parenthesis that opens at `start` closes, on the same line, or None."""
    depth = 0
    for at in range(start, len(code)):
        depth += {'(': 1, ')': -1}.get(code[at], 0)
        if depth == 0:
            return at
    return None


def is_message(code):
    return 'Error(' in code or 'StrCat(' in code or 'StrAppend(' in code or '~' in code and '"' in code and ';' not in code


def mutants_of(file, text):
    found = []
    for number, line in enumerate(text.split('\n'), 1):
        code = code_of(line)
        if not code.strip() or code.startswith(('#', 'namespace', 'template', 'inline constexpr', 'static_assert')):
            continue
        for kind, swaps in SWAPS.items():
            for old, new in swaps.items():
                at = code.find(old)
                while at >= 0:
                    found.append(Mutant(file, number, at, kind, old, new))
                    at = code.find(old, at + 1)
        if not is_message(code):  # a number in a message is no behaviour
            for match in NUMBER.finditer(code):
                found.append(Mutant(file, number, match.start(), 'constant', match[1], str(int(match[1]) + 1)))
        for match in CONDITION.finditer(code):
            start = match.end() - 1
            end = closing(code, start)
            if end is not None and ';' not in code[start:end]:
                old = line[start:end + 1]
                found.append(Mutant(file, number, start, 'negation', old, f'(!{old})'))
        if STATEMENT.match(code) and not DECLARATION.match(code) and code.count('(') == code.count(')'):
            indent = len(line) - len(line.lstrip())
            body = line[indent:len(code.rstrip())]
            found.append(Mutant(file, number, indent, 'deletion', body, ';'))
    return found
