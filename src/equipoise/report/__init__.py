"""One page that shows who gained and who paid."""
