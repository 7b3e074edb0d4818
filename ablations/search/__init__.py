"""Searches: which numbers to train with, found by trials and judged on seeds that no trial has seen."""
