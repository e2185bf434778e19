"""The fresh processes of a group: ``python -I …/__main__.py PATH ROLE ARGUMENT…``, as `role_command` writes it."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the role that the command line names."""
    path, role, *arguments = sys.argv[1:]
    known = set(sys.path)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if ours not in known:
        # Not installed, but found through the environment of the program: this very reput, and no other.
        sys.path.insert(0, ours)
    sys.path += [entry for entry in path.split(os.pathsep) if entry and entry not in known]
    # Each role loads only its own modules.
    if role == "describe":
        from reput.process.plugin.describe import main as describe

        describe(arguments)
    elif role == "supervisor":
        from reput.process.supervisor.supervisor import main as supervise

        supervise(arguments)
    elif role == "contract":
        from reput.process.contract.suite import main as try_contract

        try_contract(arguments)
    else:
        raise SystemExit(f"unknown role: role={role}")


if __name__ == "__main__":
    main()
