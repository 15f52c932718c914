"""How the forwards of a Hugging Face decoder are computed: transformers' own way, and faster ones."""
