"""Modules of ``sb3_contrib.common.maskable``."""
