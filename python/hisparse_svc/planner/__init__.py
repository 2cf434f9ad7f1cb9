"""The planner's front: it finds the model and hands the question to the core. No formula lives here.

::

    MODEL ──► models.load ──► Model ─┐
                                     ├──► hisparse_svc._core ──► Plan, Validation
    keyword arguments ───────────────┘
"""
