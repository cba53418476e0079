"""What the backbone is asked to write about, so that training text is broad and nobody's but the backbone's."""

from __future__ import annotations

from itertools import product
from typing import Any

GENRES = (
    "Write a short text message to a friend about {}.",
    "Write a short e-mail to a colleague about {}.",
    "Write a chat of six short messages between two friends about {}. Begin each line with a name.",
    "Write a short meeting dialogue of three colleagues about {}. Begin each line with the speaker's name.",
    "Write the first paragraph of a news article about {}.",
    "A student of English writes a short essay about {}. Write the first paragraph.",
    "Write three phone notifications about {}, one a line.",
    "Write a short customer complaint about {}.",
    "Write a diary entry of three sentences about {}.",
    "Explain {} to a child in three sentences.",
    "Give five short tips about {}.",
    "What do people often ask about {}? Give one question and its answer.",
    "Write a short product review about {}.",
    "Write a post for a neighbourhood group about {}.",
    "Tell a very short story about {}.",
    "Write two sentences about {} as a sports reporter would.",
    "Compare two opinions about {} in a few sentences.",
    "Describe {} in simple words.",
    "Write five short sentences that a person who learns English might say about {}.",
    "Write four text messages, one a line, that a person gets about {}. Begin each line with the sender's name.",
    "Write a group chat of five short messages about {}. Begin each line with a name.",
    "Write a short message to a neighbour about {}.",
    "Write a short message to a teacher about {}.",
    "Write a short news report of three sentences about {}.",
    "Write down what four people said in a short meeting about {}. Begin each line with the speaker's name.",
    "Write an essay of four sentences about {}. Begin with: I think",
    "Write four sentences about {} in the past tense. Begin with: Yesterday I",
    "Write a short voice mail about {}.",
)

_TOPICS = """
a late train; a lost wallet; dinner plans; a birthday party; moving to a new flat; a broken phone; the weather; a
job interview; a school exam; learning to drive; a football match; a new restaurant; a doctor's appointment; a
flight delay; a new puppy; a noisy neighbour; online shopping; a wrong delivery; a refund; a bank card; a password
reset; a software update; a bug in an app; a power cut; a water bill; rent; a garden; cooking pasta; baking bread;
coffee; tea; breakfast; a diet; running; yoga; swimming; cycling to work; a marathon; basketball; tennis; chess;
video games; a film; a series on television; a book club; a library; poetry; a museum; painting; photography; a
concert; learning the guitar; a choir; dancing; a wedding; a funeral; a baby; grandparents; a family reunion;
friendship; a quarrel; an apology; homework; a group project; university; a scholarship; a language course; studying
abroad; a teacher; a class trip; a summer job; a promotion; working from home; a deadline; a budget; a sales report;
a new colleague; a client visit; a strike; a pension; taxes; an election; a new law; a city council; public
transport; a traffic jam; an accident on the motorway; electric cars; a car repair; parking; a bridge; a new
airport; trains; ships; space travel; the moon; Mars; stars; a solar eclipse; a storm; a flood; a drought; snow; an
earthquake; a forest fire; climate change; recycling; plastic in the sea; solar power; wind power; nuclear power;
oil prices; inflation; the stock market; a start-up; a robbery; a police investigation; a court case; a missing cat;
a zoo; dogs; horses; birds; bees; whales; dinosaurs; trees; a farm; a village; a big city; the countryside;
mountains; a lake; the beach; camping; a hotel; a museum in London; a weekend in Paris; a holiday in Japan; a trip
to Brazil; life in Canada; Korean food; Indian festivals; African music; the Olympic Games; the World Cup; a record;
an injury; a coach; a referee; health insurance; a headache; sleep; stress; vaccines; a hospital; a dentist;
glasses; allergies; smoking; first aid; children and screens; social media; a podcast; artificial intelligence;
robots; a smart watch; headphones; a laptop; a printer; a camera; internet speed; privacy; a scam; a phishing mail;
encryption; a website; a database; a programming course; mathematics; a physics experiment; chemistry; the human
heart; the brain; history of writing; ancient Rome; the printing press; the French Revolution; a president; a queen;
a famous scientist; a famous painter; a fashion show; shoes; a haircut; a washing machine; a vacuum cleaner;
furniture; a kitchen; painting a room; a leaking roof; a broken window; a key; a bicycle lock; a lost suitcase; a
passport; a visa; the post office; a parcel; a gift; Christmas; the new year; Easter; Ramadan; a picnic; a barbecue;
a recipe for soup; pizza; chocolate; ice cream; vegetables; a supermarket; a market; a tip for the waiter; a table
for six; a meeting at three; a cancelled meeting; a reminder; a shopping list; a carpool; a babysitter; a school
bus; a parents' evening; a playground
"""
TOPICS = tuple(" ".join(topic.split()) for topic in _TOPICS.split(";"))


def requests() -> list[dict[str, Any]]:
    """One ``write`` row for each genre and topic; a topic is a document, held back whole or not at all."""
    return [
        {"id": f"write-{t}-{g}", "document": f"write-{t}", "task": "write", "text": genre.format(topic)}
        for (t, topic), (g, genre) in product(enumerate(TOPICS), enumerate(GENRES))
    ]
