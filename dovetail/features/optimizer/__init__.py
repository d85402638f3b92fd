"""Optimizers, schedules and parameter updates."""
