"""Modularity, measured: does every feature reach every experiment, and what would it cost to add?"""
