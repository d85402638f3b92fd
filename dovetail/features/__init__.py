"""Features: changes that apply to any experiment, in folders by kind.

`--with NAME` applies one. A feature is a modifier with the components that it needs and the code
that it owns; the mathematics is in `layers/`, `learner/` and `kernels/`. Listing features must not
load JAX, so modifiers import layers inside the function.
"""

from dovetail.features.feature import Feature, NotApplicable, feature, features, named_component

__all__ = ["Feature", "NotApplicable", "feature", "features", "named_component"]
