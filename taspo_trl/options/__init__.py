"""What becomes of each inherited option of TRL, and which values an option may have."""
