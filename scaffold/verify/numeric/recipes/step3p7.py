"""Step3p7: Step3-VL's class with StepVL's tower. Step5 is a subclass of it with another language model."""

from __future__ import annotations

from scaffold.verify.numeric.recipes.step_vl import StepVL


class Step3p7(StepVL):
    """StepVL's sizes."""

    module = "step3p7"
    host_class = "Step3p7ForConditionalGeneration"


RECIPE = Step3p7()
