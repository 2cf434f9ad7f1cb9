import hisparse_svc


def test_the_version_comes_from_the_native_module() -> None:
    assert hisparse_svc.__version__
