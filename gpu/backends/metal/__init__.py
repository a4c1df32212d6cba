"""Apple's GPUs by Metal. So far what makes code for them, and no device."""
