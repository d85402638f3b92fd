"""The modularity meter: how many lines change to add a feature, and does it work everywhere?"""
