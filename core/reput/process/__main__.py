"""Entry of a group's fresh processes: ``python -I …/__main__.py PATH ROLE ARGUMENT…``, built by `role_command`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    """Run the role named by the command line."""
    # Loading modules makes hardly any garbage, but each collection visits all that was loaded so far.
    gc.disable()
    path, role, *arguments = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # reput is not installed but found through the program's environment: use exactly that copy.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    # Each role loads only the modules it needs.
    if role == "describe":
        from reput.process.plugin.describe import main as run
    elif role == "supervisor":
        from reput.process.supervisor.supervisor import main as run
    elif role == "contract":
        from reput.process.contract.suite import main as run
    else:
        raise SystemExit(f"unknown role: role={role}")
    gc.freeze()
    gc.enable()
    run(arguments)


if __name__ == "__main__":
    main()
