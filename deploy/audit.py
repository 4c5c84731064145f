"""Ask which of the pinned versions have known vulnerabilities: `make audit`, also a part of CI.

0: none of those that could be looked up; 1: some. Where no advisory can be reached nothing is known: it says SKIPPED
and ends with 0, and with 75 when REQUIRE_AUDIT is set, for a pipeline that has the network.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CONSTRAINTS = Path(__file__).parent / "constraints.txt"


def verdict(dependencies: list[dict[str, Any]]) -> tuple[int, str]:
    """Judge pip-audit's report: the exit code, and what to say."""
    known = [each for each in dependencies if "skip_reason" not in each]
    if not known:
        return _unknown("the advisory service knows none of the packages, as a mirror that has only files")
    found = [
        f"{each['name']} {each['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'no version'}"
        for each in known
        for flaw in each["vulns"]
    ]
    if found:
        return 1, "\n".join(found)
    rest = len(dependencies) - len(known)
    return 0, f"{len(known)} pinned packages have no known vulnerability" + (f"; {rest} are unknown" if rest else "")


def _unknown(why: str) -> tuple[int, str]:
    return (os.EX_TEMPFAIL if os.environ.get("REQUIRE_AUDIT") else 0), f"SKIPPED: {why}; nothing was audited"


def main() -> int:
    """Run pip-audit, which is beside this Python."""
    words = ["--format", "json", "--progress-spinner", "off", "--timeout", "10", "--no-deps", "--disable-pip"]
    command = [sys.executable, "-m", "pip_audit", *words, "--requirement", str(CONSTRAINTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        code, text = verdict(json.loads(done.stdout)["dependencies"])
    except ValueError:
        code, text = _unknown((done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1][:200])
    sys.stdout.write(f"audit: {text}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
