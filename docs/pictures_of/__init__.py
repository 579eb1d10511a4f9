"""The pictures of the method pages, drawn from the methods' own code. `python docs/make_pictures.py` draws them all."""
