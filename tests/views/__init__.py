"""Tests of the contract's views."""
