"""Recognises gestures from a wristband."""
