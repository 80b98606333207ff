"""Profiles of Hypothesis: HYPOTHESIS_PROFILE=long looks for minutes where the default looks for seconds."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("default"), max_examples=3_000, stateful_step_count=80)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
