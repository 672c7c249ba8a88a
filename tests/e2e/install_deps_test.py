# SPDX-License-Identifier: Apache-2.0
"""deploy/install-deps.sh where one package is missing: dpkg-query, apt-get and sudo are scripts made here."""
import os
import stat
import subprocess

import pytest
from conftest import ROOT

TOOLS = {
    "dpkg-query": '#!/bin/sh\nfor package; do :; done\n[ "$package" = ninja-build ] || echo "install ok installed"\n',
    "id": "#!/bin/sh\necho {user}\n",
    # As sudo does where it keeps nothing of the environment.
    "sudo": '#!/bin/sh\nexec env -i PATH="$PATH" "$@"\n',
    # Fails as often as there are files busy.*: as apt-get does where another fetches the lists.
    "apt-get": """#!/bin/bash
echo "proxy=$http_proxy none=$no_proxy $*" >>"{folder}/calls"
for busy in "{folder}"/busy.*; do
  [ -e "$busy" ] || break
  rm "$busy"
  cat "{folder}/why" >&2
  exit 100
done
""",
}
LOCKED = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt-get)\n"


@pytest.fixture
def install(tmp_path):
    def run(user=0, why="", failures=0, environment={}):
        for name, text in TOOLS.items():
            tool = tmp_path / name
            tool.write_text(text.replace("{user}", str(user)).replace("{folder}", str(tmp_path)))
            tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
        (tmp_path / "why").write_text(why)
        for number in range(failures):
            (tmp_path / f"busy.{number}").touch()
        done = subprocess.run([ROOT / "deploy/install-deps.sh"], env={"PATH": f"{tmp_path}{os.pathsep}/usr/bin:/bin", **environment},
                              capture_output=True, text=True, timeout=60)
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


def test_lists_that_another_fetches_are_waited_for(install):
    done, calls = install(why=LOCKED, failures=2)
    assert done.returncode == 0, done.stderr
    assert [" update" in call for call in calls] == [True, True, True, False] and "install -y" in calls[3] and "ninja-build" in calls[3]


def test_a_network_that_is_not_there_is_told_at_once(install):
    done, calls = install(why="E: Could not resolve 'deb.debian.org'\n", failures=1)
    assert done.returncode == 2 and len(calls) == 1
    assert "Could not resolve" in done.stderr and "is the network there?" in done.stderr


def test_sudo_keeps_the_proxy_that_the_user_has(install):
    done, calls = install(user=1000, environment={"http_proxy": "http://proxy:3128", "no_proxy": "intranet"})
    assert done.returncode == 0, done.stderr
    assert len(calls) == 2 and all(call.startswith("proxy=http://proxy:3128 none=intranet ") for call in calls)


def test_without_a_proxy_there_is_none(install):
    done, calls = install(user=1000)
    assert done.returncode == 0, done.stderr
    assert len(calls) == 2 and all(call.startswith("proxy= none= ") for call in calls)
