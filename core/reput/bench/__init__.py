"""reput's own measurements. Each returns a dictionary of what was done and seen; `machine_facts` say where.

Figures are for comparison within one run on one machine; nothing in the tests depends on them.
"""
