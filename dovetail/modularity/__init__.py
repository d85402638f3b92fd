"""Modularity, measured: does a feature reach every experiment, and what would adding it cost?"""
