# SPDX-License-Identifier: Apache-2.0
"""Every wait of a stream for an event in the sharding strategies is needed: numbers them in a copy of the headers,
compiles a training run against the copy, and lets it run without each of them in turn. Each must change the result, or
be a data race if the flags say -fsanitize=thread. Without a fault nothing changes.

    python3 dropped_waits.py INCLUDE COMPILER [FLAGS...]
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

INCLUDE = pathlib.Path(sys.argv[1])
COMPILE = sys.argv[2:]
HERE = pathlib.Path(__file__).resolve().parent
HEADERS = ("gathered_blocks", "shard_gradients", "sharded_engine", "sharded_optimizer", "flat_engine",
           "gradient_reduction")
LEAST = 7
TRIES = "5"

WAIT = re.compile(r"(?<![\w.>])\w+\.wait\((?=[a-z])[^;]*\);")


def number_waits(folder):
    """Makes every wait in the copied headers depend on its number. Returns what they are."""
    waits = []
    for name in HEADERS:
        header = folder / "smp/parallel" / (name + ".hpp")
        text = header.read_text()

        def numbered(match):
            line = text.count("\n", 0, match.start()) + 1
            waits.append(f"{name}.hpp:{line} {match.group(0)}")
            return f"if (!dropped({len(waits) - 1})) {match.group(0)}"

        body = WAIT.sub(numbered, text)
        header.write_text(body.replace("#pragma once", "#pragma once\nbool dropped(int number);", 1))
    return waits


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        shutil.copytree(INCLUDE / "smp", folder / "smp")
        waits = number_waits(folder)
        if len(waits) < LEAST:
            sys.exit(f"found {len(waits)} waits, expected at least {LEAST}")
        program = folder / "program"
        subprocess.run([*COMPILE, f"-I{folder}", f"-I{HERE.parent}", str(HERE / "dropped_waits.cpp"), "-o", str(program)],
                       check=True)
        racy = any("sanitize=thread" in flag for flag in COMPILE)
        environment = {**os.environ, "TSAN_OPTIONS": "exitcode=1 halt_on_error=1"}
        failures = 0
        for number, wait in [(-1, "none"), *enumerate(waits)]:
            tries = "20" if number < 0 else TRIES
            result = subprocess.run([str(program), str(number), tries], env=environment, capture_output=True, text=True,
                                    timeout=300, check=False)
            noticed = result.returncode != 0
            right = noticed == (number >= 0)
            failures += not right
            print("ok    " if right else "WRONG ", "noticed" if noticed else "unnoticed", "without", wait,
                  result.stdout.strip(), flush=True)
            if racy and number < 0 and noticed:
                print(result.stderr)
        sys.exit(failures > 0)


main()
