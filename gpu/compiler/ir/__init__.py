"""The three intermediate representations, their text form, verifiers and interpreters."""
