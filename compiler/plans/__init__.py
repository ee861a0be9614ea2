"""Plans: the document, the files, the program of every rank."""
