"""Features: one file each, which brings a part to every experiment for which it makes sense.

`--with NAME` applies one. A file holds the modifier and says what the feature needs and which files
are its own; the mathematics is in the layers, the learner or the kernels. Listing features loads
no JAX, so a modifier imports what it needs inside the function.
"""

from dovetail.features.feature import Feature, NotApplicable, feature, features, named_part

__all__ = ["Feature", "NotApplicable", "feature", "features", "named_part"]
