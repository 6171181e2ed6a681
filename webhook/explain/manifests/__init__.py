"""The manifests that `explain` reads: their documents, and the pods and pod templates in them."""
