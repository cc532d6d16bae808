"""The rim: the only modules that open files. Records in, records out."""
