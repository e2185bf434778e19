"""Lease: which node of several is the master, as an engine for agreement decides it. It knows no store."""
