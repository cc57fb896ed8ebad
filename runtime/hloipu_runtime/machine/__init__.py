"""The modelled machine: sourced numbers, and cost formulas."""
