"""Read and write programs and values as bytes, in files and on pipes; bytes to read are untrusted input."""
