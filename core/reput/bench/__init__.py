"""reput's own measurements. Each returns a dictionary of its parameters and figures; `machine_facts` adds the machine.

Figures are for comparison within one run on one machine; nothing in the tests depends on them.
"""
