"""GPU drivers in pure Python with a lazy, compiled tensor library on top."""
