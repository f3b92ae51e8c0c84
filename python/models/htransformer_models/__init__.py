"""Files for htransformer.load and htransformer.train: the models' library and a small language
model. There is nothing to call here."""
