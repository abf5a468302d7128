"""Results: what an attempt left behind, checked, hashed and measured. Nothing here starts or ends anything."""
