"""What a random history (histories.py) knows of its steps and trainings: what each training saved last, and whole.

Of each step it knows whether it is whole: a training ended its save of it (YES); it lacks something, or is of two saves
(NO); or nobody can tell (MAYBE), which neither has to stay nor pushes out another one unlawfully.
"""

YES, MAYBE, NO = "whole", "whole or not", "not whole"
THINNED = "ckptfs-thinned.json"


class Step:
    def __init__(self, inode, name):
        self.inode, self.name = inode, name
        self.files = {}
        self.authors = {}  # the training that wrote each of them last
        self.whole, self.was_whole = NO, NO
        self.full, self.was_full = True, True  # else it was thinned
        self.saved = self.touched = 0  # acts: when it became whole; when anything happened to it
        self.numbers = {number_of(name)}
        self.loss = None
        self.pinned = self.was_pinned = False
        self.was_older = False  # than another whole save, and may have been thinned then
        self.odd = False  # written twice, or sealed as it is: what the mount thinks of it is its own matter
        self.alone = False  # a model that was meant so
        self.gone = ""
        self.writer = None
        self.writers = set()
        self.layouts = set()  # the files of its saves
        self.mixed = False  # of two saves: of the second one, by another run, only the beginning is there
        self.of_turns = False  # two trainings wrote it in turns

    def is_whole(self):  # at the last look, or now
        return YES in (self.whole, self.was_whole) or MAYBE in (self.whole, self.was_whole)


class Training:
    def __init__(self, worker, number, stride):
        self.worker, self.next, self.stride = worker, number, stride
        self.saves = []  # whole ones, in order
        self.wrote = set()  # to these steps, of which others may have made whole ones
        self.last = None  # the newest whole one, at the last look
        self.names = set()  # files of its last save
        self.pending = None  # (step, operations) of a save that is under way

    def overtaken(self, step):
        """Nothing tells that it is the newest: somebody gave an older step of the training a higher number, or this one a
        lower one, or made one whole that it had begun to save."""
        return any(one.is_whole() and max(one.numbers) > number_of(step.name) for one in self.wrote if one is not step)

    def newest(self):
        return next((step for step in reversed(self.saves) if step.whole == YES and not step.gone), None)


def number_of(name):
    return int("".join(letter for letter in name if letter.isdigit()) or 0)
