"""What a tree of source code is measured by: sizes, annotations, names and the imports among packages."""
