from dovetail.data.preparation.splits import draw, held_out_names

NAMES = [f"folder/file_{number}.py" for number in range(4000)]


def test_about_a_twentieth_is_held_out():
    assert 0.04 < len(held_out_names(NAMES)) / len(NAMES) < 0.06


def test_the_order_of_documents_does_not_matter():
    assert held_out_names(NAMES) == held_out_names(NAMES[::-1])


def test_a_document_keeps_its_side_when_others_come_and_go():
    half = set(NAMES[::2])
    assert held_out_names(half) == held_out_names(NAMES) & half


def test_the_draw_of_a_name_never_changes():
    # Were this to change, runs would train on what earlier ones held out.
    assert draw("os.py") == 0.943812766417913


def test_even_two_documents_give_both_splits():
    for number in range(50):
        assert len(held_out_names({f"{number}a", f"{number}b"})) == 1


def test_a_single_document_is_for_training():
    for number in range(200):
        assert held_out_names([f"file_{number}"]) == frozenset()
    assert held_out_names([]) == frozenset()
