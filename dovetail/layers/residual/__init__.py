"""Residual joints: how a branch joins the stream, and where norms stand."""
